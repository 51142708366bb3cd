"""Small valid files of every format that palmette reads, and what reads them."""
