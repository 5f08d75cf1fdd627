// A page that was opened from a folder may not fetch others: results then go without an excerpt.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
