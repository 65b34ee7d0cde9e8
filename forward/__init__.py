"""Runs an ONNX LLM pack through onnxruntime, dumps its logits and compares dumps.

The stages, each a module that can be used alone:

    genai_config.py  genai_config.json        ─▶ Decoder: names, sizes, limits
    session.py       a graph in onnxruntime   ─▶ Session (the one door to onnxruntime)
    kv_cache.py      the past of one sequence, carried from step to step
    prompt.py        a file or a text         ─▶ token ids
    limits.py        how many tokens a pack takes
    sources.py       which files a run reads, and their hashes
    steps.py         how many tokens, how fed ─▶ Steps
    runner.py        Session × tokens × Steps ─▶ Blocks of logits
    generate.py      greedy tokens and their text
    reference.py     a transformers model     ─▶ the same Blocks
    dump_writer.py   Blocks ─▶ a folder
    dump.py          a folder ─▶ Dump
    dump_pack.py     all of this for one pack
    statistics.py    two blocks of logits     ─▶ figures per position
    compare.py       two Dumps                ─▶ Comparison (comparison.py)
    terminal.py      what a person sees while a run goes on
    cli.py           the command `forward-serve`

As a library:

    from forward.compare import compare
    from forward.dump import read_dump
    from forward.runner import run_logits

    run = run_logits("PACK", tokens, decode=64)
    print(compare(read_dump("REFERENCE"), run).text())
"""
