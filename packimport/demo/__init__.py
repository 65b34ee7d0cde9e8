"""The demo: a small faulty pack made on the spot, checked, mended and proved.

    model.py           what the demo model is: its config and its tokens
    weights.py         its seeded weights
    pack.py            the pack on disk, with a plain table
    make_reference.py  the script that makes reference.npz with transformers
    reference.py       reads reference.npz
    proof.py           a pack's logits against the reference
    story.py           the sequence that `packimport demo` prints

`model.onnx` is the graph alone, about 10 KB; `tests/demo/make_demo_graph.py`
makes it. Nothing here is imported by another part of packimport.
"""
