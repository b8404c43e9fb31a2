"""The HTTP shell: one port, one table of routes that is both what is served and what is documented.

An API gives `Route`s; everything around a handler (authentication, limits, deadlines, the form of errors) is here.
`client/` sends requests, and loads nothing of this.
"""
