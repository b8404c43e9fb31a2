"""The lake: Delta tables with the archived log, and with the results of jobs."""
