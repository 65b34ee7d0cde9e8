"""The judgement: Semantics × Sites ─▶ Findings ─▶ a Report.

measure  the numbers that tell a baked table from the declared one
checks   the codes: severity, verdict and one line each
judge    one function per check
audit    a container goes in, a Report comes out
report   the Report as JSON and as text
show     what was read, unjudged
"""
