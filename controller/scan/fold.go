package scan

import (
	"bytes"
	"sync"
	"unicode"
	"unicode/utf8"
)

// folded is a text in which different spellings are equal: lower case without
// accents, Latin letters in place of look-alikes, no invisible characters, and
// one space for other characters. It begins and ends with a space.
type folded struct {
	text []byte
	at   []int32 // for each byte of text, where it was
}

// fold folds a text.
func fold(b []byte) folded {
	f := folded{text: make([]byte, 1, len(b)+2), at: make([]int32, 1, len(b)+2)}
	f.text[0] = ' '
	for i := 0; i < len(b); {
		c := b[i]
		if c < utf8.RuneSelf {
			if low := asciiFold[c]; low != ' ' {
				if low != 0 {
					f.text, f.at = append(f.text, low), append(f.at, int32(i))
				}
			} else if f.text[len(f.text)-1] != ' ' {
				f.text, f.at = append(f.text, ' '), append(f.at, int32(i))
			}
			i++
			continue
		}
		r, size := utf8.DecodeRune(b[i:])
		f.rune(r, int32(i))
		i += size
	}
	if f.text[len(f.text)-1] != ' ' {
		f.text, f.at = append(f.text, ' '), append(f.at, int32(len(b)))
	}
	return f
}

// asciiFold is the folded form of an ASCII character; 0: dropped.
var asciiFold = func() (table [utf8.RuneSelf]byte) {
	for c := range table {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			table[c] = byte(c)
		case c >= 'A' && c <= 'Z':
			table[c] = byte(c) + 'a' - 'A'
		case c == '\'':
		default:
			table[c] = ' '
		}
	}
	return table
}()

// rune adds a character beyond ASCII.
func (f *folded) rune(r rune, at int32) {
	if s, ok := plain()[r]; ok {
		for _, c := range []byte(s) {
			f.text, f.at = append(f.text, c), append(f.at, at)
		}
		return
	}
	switch {
	case r >= 0xFF01 && r <= 0xFF5E: // full width
		f.ascii(byte(r-0xFF01+'!'), at)
	case r >= 0x1D400 && r <= 0x1D6A3: // mathematical letters, 26 capital and 26 small ones in turn
		f.ascii("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"[(r-0x1D400)%52], at)
	case r >= 0x1F130 && r <= 0x1F149: // squared letters
		f.ascii(byte(r-0x1F130+'a'), at)
	case r >= 0x24B6 && r <= 0x24E9: // circled letters
		f.ascii(byte((r-0x24B6)%26+'a'), at)
	case unicode.In(r, unicode.Mn, unicode.Cf, unicode.Me):
	case unicode.IsLetter(r), unicode.IsDigit(r), unicode.Is(unicode.Mc, r):
		n := len(f.text)
		f.text = utf8.AppendRune(f.text, unicode.ToLower(r))
		for range len(f.text) - n {
			f.at = append(f.at, at)
		}
	default:
		f.ascii(' ', at)
	}
}

func (f *folded) ascii(c byte, at int32) {
	low := asciiFold[c]
	if low == 0 || low == ' ' && f.text[len(f.text)-1] == ' ' {
		return
	}
	f.text, f.at = append(f.text, low), append(f.at, at)
}

// foldWord folds a literal of a phrase. A space at its end stays and marks a
// whole word.
func foldWord(s string) []byte {
	t := bytes.TrimPrefix(fold([]byte(s)).text, []byte(" "))
	if s[len(s)-1] != ' ' {
		t = bytes.TrimSuffix(t, []byte(" "))
	}
	return t
}

// plain maps letters to those they are written or mistaken for.
var plain = sync.OnceValue(func() map[rune]string {
	m := map[rune]string{
		'ß': "ss", 'æ': "ae", 'Æ': "ae", 'œ': "oe", 'Œ': "oe", 'ø': "o", 'Ø': "o", 'ł': "l", 'Ł': "l", 'đ': "d", 'Đ': "d", 'ð': "d", 'þ': "th",
		'ı': "i",
		'’': "", '‘': "", 'ʼ': "", '´': "", // apostrophes
		'أ': "ا", 'إ': "ا", 'آ': "ا", 'ى': "ي", 'ی': "ي", 'ک': "ك", 'ـ': "",
	}
	for base, letters := range map[string]string{
		"a": "àáâãäåāăąǎạảấầẩẫậắằẳẵặÀÁÂÃÄÅĀĂĄǍẠẢẤẦẨẪẬẮẰẲẴẶ", "c": "çćĉċčÇĆĈĊČ", "d": "ďĎ", "e": "èéêëēĕėęěẹẻẽếềểễệÈÉÊËĒĔĖĘĚẸẺẼẾỀỂỄỆ",
		"g": "ĝğġģĜĞĠĢ",
		"h": "ĥħĤĦ", "i": "ìíîïĩīĭįǐỉịÌÍÎÏĨĪĬĮİỈỊ", "j": "ĵĴ", "k": "ķĶ", "l": "ĺļľĹĻĽ", "n": "ñńņňÑŃŅŇ",
		"o": "òóôõöōŏőơọỏốồổỗộớờởỡợÒÓÔÕÖŌŎŐƠỌỎỐỒỔỖỘỚỜỞỠỢ",
		"r": "ŕŗřŔŖŘ", "s": "śŝşšșŚŜŞŠȘ", "t": "ţťŧțŢŤŦȚ", "u": "ùúûüũūŭůűųưụủứừửữựÙÚÛÜŨŪŬŮŰŲƯỤỦỨỪỬỮỰ", "w": "ŵŴ", "y": "ýÿŷỳỵỷỹÝŸŶỲỴỶỸ",
		"z": "źżžŹŻŽ",
	} {
		for _, r := range letters {
			m[r] = base
		}
	}
	for r, c := range confusable {
		m[r] = string(asciiFold[c])
		m[unicode.ToLower(r)] = m[r] // a text in capital letters folds like one in small ones
	}
	return m
})

// confusable maps Cyrillic and Greek letters to the Latin ones they look like.
// Greek letters of formulas (α, μ, ν, ρ) are not among them.
// See Unicode Technical Standard 39, confusables.txt.
var confusable = map[rune]byte{
	'а': 'a', 'с': 'c', 'ԁ': 'd', 'е': 'e', 'һ': 'h', 'і': 'i', 'ј': 'j', 'ӏ': 'l', 'о': 'o', 'р': 'p', 'ԛ': 'q', 'ѕ': 's', 'ԝ': 'w',
	'х': 'x', 'у': 'y',
	'А': 'A', 'В': 'B', 'С': 'C', 'Е': 'E', 'Н': 'H', 'І': 'I', 'Ј': 'J', 'К': 'K', 'М': 'M', 'О': 'O', 'Р': 'P', 'Ѕ': 'S', 'Т': 'T',
	'Х': 'X', 'У': 'Y',
	'Α': 'A', 'Β': 'B', 'Ε': 'E', 'Ζ': 'Z', 'Η': 'H', 'Ι': 'I', 'Κ': 'K', 'Μ': 'M', 'Ν': 'N', 'Ο': 'O', 'Ρ': 'P', 'Τ': 'T', 'Υ': 'Y',
	'Χ': 'X', 'ο': 'o',
	'ɡ': 'g', 'ⅼ': 'l', 'ⅰ': 'i',
}
