"""Imported for its effect, before any of the packages, by all that trains: ends the program if one is missing, or torch
cannot be imported."""

from common.packages import PACKAGES, load, require

require(PACKAGES)
load("torch")
