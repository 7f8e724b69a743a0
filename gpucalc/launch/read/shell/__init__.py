"""Shell text read as data: words (lexer), statements (script), the launch command among them (command)."""
