"""Forms: where a graph holds RoPE. One module, one finder, per form."""
