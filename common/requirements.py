"""Imported for its effect, before any of the packages, by all that trains: ends the program if one is missing."""

from common.packages import PACKAGES, require

require(PACKAGES)
