"""The book: pages, decision tree, cheat sheet and reference, generated from the causes and the code. Never by hand."""
