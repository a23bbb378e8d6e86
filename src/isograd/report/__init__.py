"""Reports: records on disk, the summary and its table."""

from isograd.report.records import ResultsFile, digest_of, read_results
from isograd.report.summary import Summary

__all__ = ["ResultsFile", "Summary", "digest_of", "read_results"]
