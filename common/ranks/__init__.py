"""Several processes that train together: how they start, meet, agree, and who is lost."""
