"""Ranks: processes that train together. How they start, meet and agree, and how lost ranks are found."""
