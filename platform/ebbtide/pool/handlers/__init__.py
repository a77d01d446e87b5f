"""How each event changes the state: one handler an event, one dispatch; knows the rules, the state and its look-ups."""
