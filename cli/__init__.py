import gc

gc.set_threshold(100_000, 20, 20)
"""Before anything else is imported: with Python's 700, a sixth of the processor time until a daemon serves goes into
looking through modules that stay anyway."""
