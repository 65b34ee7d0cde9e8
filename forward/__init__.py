"""Runs an ONNX LLM pack through onnxruntime, dumps its logits and compares dumps.

The stages, each a module that can be used alone:

    genai_config.py  genai_config.json        ─▶ Decoder: names, sizes, limits
    session.py       a graph in onnxruntime   ─▶ Session (the one door to onnxruntime)
    wiring.py        what the graph's nodes allow: shared caches, parts of a text
    kv_cache.py      the past of one sequence, carried from step to step
    states.py        that of layers without attention (carriers.py: the nodes that carry it)
    prompt.py        a file or a text         ─▶ token ids (tokenizer.py)
    limited.py       strangers' templates and tokenizers, in a process with limits
    chat.py          messages ─▶ a text, by a chat template
    limits.py        how many tokens a pack takes
    sources.py       which files a run reads, and their hashes
    steps.py         how many tokens, how fed ─▶ Steps
    feeds.py         ids, mask and positions of a step (ports.py: what a graph takes)
    run.py           one sequence, step by step
    runner.py        Session × tokens × Steps ─▶ Blocks of logits
    generate.py      greedy tokens and their text
    self_check.py    every way to feed the same tokens ─▶ Checks
    reference.py     a transformers model     ─▶ the same Blocks
    dump_writer.py   Blocks ─▶ a folder
    unfinished.py    the folder while it is written, and what a kill left of it
    dump.py          a folder ─▶ Dump
    dump_pack.py     all of this for one pack
    form.py          what a dump keeps: dtype, positions, the largest logits (sink.py writes it)
    statistics.py    two blocks of logits     ─▶ figures per position (top.py, moments.py)
    entries.py       what is summed over all their entries
    truncated.py     the same where a dump keeps the largest logits alone
    figures.py       figures per position     ─▶ Figures of a range, with standard errors
    data_set.py      the dumps of many prompts, as one
    compare.py       two Dumps                ─▶ Comparison (comparison.py, gates.py, worst.py)
    three.py         a reference, before, after
    likelihood.py    before and after without a reference (scores.py)
    exchange.py      dumps from and to .npy files and llama.cpp's bases (kld_base.py)
    terminal.py      what a person sees while a run goes on
    tasks.py         what the command does with a pack
    cli.py           the command `forward-serve` (cli_run.py, cli_compare.py)

As a library:

    from forward.compare import compare
    from forward.dump import read_dump
    from forward.runner import run_logits

    run = run_logits("PACK", tokens, decode=64)
    print(compare(read_dump("REFERENCE"), run).text())
"""
