printf "#!%s\n" "$T" > inner; printf "#!%s/inner %s\n" "$W" "$A" > outer; chmod 755 inner outer; ./outer $A
