"""What api, arm and portal share: HTTP server, request context, authentication, authorization.

It may import control, store, auth, explain, core and protocol; never api, arm, portal or service, and it decides
nothing about maintenance. Start with `pipeline` (the steps of a request), `context` (what every handler is given) and
`routing` (what a route is).
"""
