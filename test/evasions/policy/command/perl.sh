type perl >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
perl -e 'exec { $ENV{T} } "innocent", $ENV{A}'; perl -e 'system $ENV{T}, $ENV{A}'
