"""The commands of `isthmus` with their options; other packages implement them."""
