#!/bin/bash
# Every bash that reads BASH_ENV turns off the builtins that stand in for programs
# which the policy judges. enable comes last: nothing can be turned off after it.
# Closing stderr keeps bash -x quiet; the function gives $_ back as it was.
{ __agentsh_startup() { enable -n kill ulimit umask builtin command enable || :; unset -f __agentsh_startup; }; __agentsh_startup "${_-}"; } 2>&-
