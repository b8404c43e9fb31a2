"""The lake: tables of files, and the manifest that says which files count."""
