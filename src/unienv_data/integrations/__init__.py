"""Other libraries' datasets as batches, and batches as theirs. Each module needs the library it is named after."""
