"""Configs ─▶ Semantics: what a pack declares, with the file and JSON pointer of every field.

reader      a container, or a bare config.json ─▶ Semantics; which declaration counts
genai       genai_config.json: sizes, lengths, graphs
config      one config.json ─▶ the schedule of every layer
  families    what a model type implies (schemas/families.yaml)
  keys        which keys are understood, and which bear on position
  dimensions  sizes, and whether they are those of the pack
  labels      which schedule each layer follows
  blocks      `rope_scaling` and `rope_parameters`
  ropes       a block, a family and sizes ─▶ Rope (scaling, width, draft)
models      known models (schemas/models.yaml)
describe    a Rope as one line
model       the records
"""
