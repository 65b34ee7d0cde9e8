"""Mending: Findings ─▶ what to change in a pack: table bytes, or a graph.

refusals   what can't be mended
needs      a table of one graph, the nodes that use it, and what they need
in_place   the bytes that suffice where a table keeps its place
tables     the values that a node needs, against those that it has
graphs     the changes of one graph
plan       the changes of a pack
"""
