ln -s "${T%/*}" ./bin; ./bin/"${T##*/}" $A
