"""That pauses change no token, as one table of scenarios.

`table` has the rows, `arena` runs one of them, `page` makes the table of docs/compatibility.md.
Files of tests/live take their part of the table by `cases`.
"""
