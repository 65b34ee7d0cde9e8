"""Changes of a graph where other table bytes do not suffice: one module per change.

splices      messages of an ONNX file replaced, added and removed; all other bytes kept
room         new spans at the end of data files
draft        one graph under change
uses         the nodes that rotate, with what they serve
take_out     a rotation that must not be there
settings     how a node pairs entries, and how many it rotates
new_tables   a table that grows, gets another width, or is added
factor       the attention factor behind cos and sin that a graph computes
by_length    tables that depend on the length of the call: `longrope` and `dynamic`
"""
