"""RoPE as pure numbers: numpy in, numpy out. Nothing here knows a file.

schedule     Rope: what a model declares
validation   refuses a Rope that no formula accepts
frequencies  Rope ─▶ Frequencies; one function per type in plain, bands, by_length
tables       Frequencies ─▶ Table; mrope does it for positions on several axes
rotation     the reference rotation of q and k by a Table
dynamic      rotation for engines whose base follows the length of a call
difference   Table × Frequencies ─▶ how far they are apart
identify     Table ─▶ the schedule that made it
"""
