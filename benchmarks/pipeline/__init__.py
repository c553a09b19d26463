"""`isthmus bench pipeline`: how well encoding hides behind the exchange."""
