"""What `q2p reproduce` can make, and what others have published: tables, as data.

`GRAPH-METHOD.toml` says how a method is trained on a graph, or alike on several (`recipes`), `published.toml` what
papers print (`published`).
"""
