"""``hearth bench``: HearthFS beside a plain directory and its rivals, in one run."""
