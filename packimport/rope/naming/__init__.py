"""Naming: from the entries of a table to the schedule that made them.

    damage       rows that no schedule makes: NaN, zeros, rows that do not turn
    sample       the rows that are looked at, compared with what a schedule bakes
    phases       Sample ─▶ angles, and rough frequencies
    recovery     Sample ─▶ the range of each pair's frequency, and of the amplitude
    distortion   cos and sin swapped, sin negated, rows shifted: found and undone
    suspects     declared schedules ─▶ what exporters are known to make of them
    case         one table with all of these, for the stages
    stages       the ways to explain a case, in order
    families     schedules of any parameters: fits, llama3_fits and yarn_fits propose
                 them from the ranges, the sample decides
    explanation  a named schedule, and what coincides with it
    labels       a schedule as a short text, beside what is declared
    mistakes     the known mistakes: ids and texts

`rope.identify` is the door.
"""
