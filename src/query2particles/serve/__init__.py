"""A server for questions: JSON over HTTP, and the page that asks them.

limits      what a client may ask for, and for how long
problems    what can go wrong, in the one shape that every error has
security    keys, hosts, origins, headers
guard       stands before every request: reads it within the limits, answers errors, measures, logs
batching    questions that arrive together are answered together
runs        the runs that are served, each in its newest version
schemas     the JSON that comes in and goes out
questions   the endpoints that take a question
lists       the endpoints that tell what is served
replies     how endpoints reply, well or not
pages       what a browser sees
app         all endpoints and pages, behind the guard
protocol    connections: how many, how slow, how long their headers
server      start, listen, drain

Everything but `limits` needs the extra `serve` (pip install 'query2particles[serve]').
"""
