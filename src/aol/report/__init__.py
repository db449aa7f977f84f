"""What runs have to tell, shown: figures, tables, one page. Reads records; trains nothing and writes no record.

`story.py` reads any folder of records; everything else here draws or writes what a `Story` holds.
"""
