"""Small runnable things that show, and test, the serving room: they import no other module of it."""
