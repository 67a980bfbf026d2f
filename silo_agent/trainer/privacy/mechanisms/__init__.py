"""One module per mechanism; `protocol` says what each of them promises, `catalogue` which there are."""
