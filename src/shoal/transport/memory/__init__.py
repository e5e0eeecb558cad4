"""Memory that processes of one machine share: arenas, how it is waited on, and who of a group has a part in it."""
