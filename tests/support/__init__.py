"""What tests share and is no test: commands, files to read, random sentences, tolerances."""
