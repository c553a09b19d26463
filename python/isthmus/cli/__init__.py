"""The options of each command of `isthmus`; what a command does stands in the package that it is about."""
