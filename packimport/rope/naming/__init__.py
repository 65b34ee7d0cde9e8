"""Naming: from the entries of a table to the schedule that made them.

    damage      rows that no schedule makes: NaN, zeros, rows that do not turn
    sample      the rows that are looked at, and the comparison with what a schedule bakes
    recovery    Sample ─▶ the range of each pair's frequency, and of the amplitude
    distortion  cos and sin swapped, sin negated, rows shifted: found and undone
    suspects    declared schedules ─▶ what exporters are known to make of them
    fits        Recovery ─▶ plain, linear and proportional schedules that lie in the ranges
    band_fits   the same for llama3 and yarn
    labels      a schedule as a short text, beside what is declared
    mistakes    the known mistakes: ids, texts, exporters

`rope.identify` is the door.
"""
