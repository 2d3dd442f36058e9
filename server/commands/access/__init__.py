"""What users may do: rules, selectors, the users of a server, refusals, and the commands about them (ACL)."""
