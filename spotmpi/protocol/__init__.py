"""The protocol, pure: memberships, the recovery, the ledger, the sampler, the control word."""
