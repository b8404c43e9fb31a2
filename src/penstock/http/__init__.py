"""The HTTP shell: one port and one table of routes, which is both served and documented.

An API supplies `Route`s; everything around a handler (authentication, limits, deadlines, the format of errors) is here.
`client/` sends requests, and imports nothing from the server part.
"""
