"""Six tasks and thirty samples in the shape of real generations, for ``isograd demo``."""
