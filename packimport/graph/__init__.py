"""Graphs ─▶ Sites: where an ONNX file keeps its RoPE constants. Facts, no judgement.

site         the records: Site, Unread, GraphFacts
wire         the bytes of an ONNX file, walked around its weights
onnx_file    the one door to onnx: bodies, nodes, tensors
attention    the layers, and what stands between their projections and them
forms/       one finder per form
growth       frequencies whose base follows the length of the call
dangling     rotations by positions that nothing makes
completeness what no finder has read
find         find_sites: all of that for one file
encodings    how a table lies in tensors
changes/     changes of a graph, as new bytes of its file
"""
