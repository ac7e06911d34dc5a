echo "$T" | xargs -I{} sh -c "{} $A"
