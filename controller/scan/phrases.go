package scan

import (
	"bytes"
	"strings"
	"sync"
)

// phrase is a sequence of word groups with short gaps between them. A word
// matches as a prefix unless it ends with a space.
type phrase struct {
	rule   string
	groups [][][]byte
	gap    int // bytes of folded text between two groups, at most
}

// phraseTable lists phrases of injections by rule and language. " > " separates
// groups, "|" the words of a group.
var phraseTable = []struct{ rule, language, text string }{
	{
		RuleInjection,
		"English",
		"ignor|disregard|forget|pay no attention to|do not follow|dont follow|stop following|discard > previous|prior " +
			"|above|earlier|preceding|foregoing|original|initial|all of the|your |system |you were given|you have been given > " +
			"instruction|prompt|directions|guideline|directive|programming",
	},
	{RuleInjection, "English", "override|supersede|replace > your > instruction|prompt|guideline|programming|directive"},
	{
		RuleInjection,
		"English",
		"previous|prior |above|earlier|original > instruction|prompt|directive > are void|are cancelled|are canceled|are obsolete|no longer " +
			"apply|were a test|were fake|should be ignored|must be ignored|are to be ignored",
	},
	{RuleInjection, "English", "your new > instruction|objective|task is|goal is|system prompt"},
	{
		RuleInjection,
		"English",
		"bypass|circumvent|disable|turn off|evade > your > safety|restriction|filter|guardrail|security|sandbox|safeguard",
	},
	{
		RuleRole,
		"English",
		"you are now|youre now|act as|become|simulate|roleplay as > dan |jailbr|in developer mode|unrestricted|unfiltered|uncensored|an ai " +
			"without|an ai with no|no longer bound|free from|a different ai|in god mode|root agent",
	},
	{RuleRole, "English", "developer mode|god mode|jailbreak mode|dan mode > enabled|activated|is on "},
	{
		RuleRole,
		"English",
		"you have no|you no longer have|pretend you have no|pretend to have no|without any > restriction|content polic|safety " +
			"guideline|ethical guideline|guardrail|content filter",
	},
	{
		RuleConceal,
		"English",
		"do not|dont|never|without|must not|avoid > tell|inform|mention|reveal|alert|notify|disclos|report this|telling|show this > " +
			"user|operator|human|developer|anyone|reviewer|maintainer|owner",
	},
	{
		RuleConceal,
		"English",
		"hide|conceal|keep > this|these|it secret|them secret|secret|hidden > from the user|from the operator|from the human|from the " +
			"developer|from the reviewer|from anyone|from users",
	},
	{
		RuleExfiltrate,
		"English",
		"send|post |upload|exfiltrat|forward|transmit|leak|submit|email|curl |deliver > api key|apikey|access " +
			"key|secret|token|credential|password|private key|ssh key|environment variable|env var|env file|env |id rsa|system prompt|source " +
			"code > http|www |webhook|attacker|pastebin|ngrok|requestbin|our server|my server|external server|remote server|following " +
			"url|following address|this url|this address",
	},
	{
		RuleExfiltrate,
		"English",
		"read|cat |open|print|copy|include|collect > env file|aws credential|id rsa|ssh id|ssh key|private key|etc shadow|all environment " +
			"variables|environment variables|dotenv > and send|and post|then send|then post|and upload|then upload|and append|in your " +
			"response|in your answer|in the commit|in the pull request|as a query|as a parameter",
	},
	{
		RuleExfiltrate,
		"English",
		"reveal|print|repeat|output|show|leak|disclose|tell me > system prompt|initial instruction|initial prompt|hidden " +
			"instruction|developer message|your instructions|your prompt",
	},

	{
		RuleInjection,
		"German",
		"ignorier|missacht|vergiss|vergesst|verwirf > vorherig|vorig|bisherig|obig|fruher|vorangegangen|vorhergehend|deine|eure|alle > " +
			"anweisung|instruktion|vorgabe|befehl|prompt",
	},
	{
		RuleInjection,
		"German",
		"vorherig|vorig|bisherig|obig|fruher|vorangegangen|deine > anweisung|instruktion|vorgabe|befehl > " +
			"ignorier|missacht|vergess|vergiss|nicht beacht",
	},
	{
		RuleInjection,
		"French",
		"ignore|oublie|neglige|ne tiens pas compte|ne tenez pas compte|fais abstraction|faites abstraction > " +
			"instruction|consigne|directive|ordres > precedent|anterieur|ci dessus|initial|recu",
	},
	{RuleInjection, "French", "ignore|oublie > precedentes|anterieures > instruction|consigne|directive"},
	{
		RuleInjection,
		"Spanish",
		"ignora|ignore|olvida|olvide|haz caso omiso|haga caso omiso|descarta|no hagas caso > " +
			"instruccion|indicacion|ordenes|directriz|directrices > anterior|previa|de arriba|precedent|original|recibid",
	},
	{RuleInjection, "Spanish", "ignora|ignore|olvida|olvide > anteriores|previas > instruccion|indicacion|ordenes|directrices"},
	{
		RuleInjection,
		"Portuguese",
		"ignore|ignora|esqueca|esquece|desconsidere|desconsidera > instruco|ordens|orientaco|diretriz > anterior|previa|acima|precedent",
	},
	{
		RuleInjection,
		"Italian",
		"ignora|ignori|dimentica|trascura|non tenere conto > istruzion|direttiv|indicazion|comandi > precedent|anterior|sopra|iniziali",
	},
	{RuleInjection, "Italian", "ignora|dimentica > precedenti > istruzion|direttiv|indicazion|comandi"},
	{
		RuleInjection,
		"Dutch",
		"negeer|vergeet|sla over > vorige|voorgaande|eerdere|bovenstaande|alle > instructie|aanwijzing|opdracht|richtlijn",
	},
	{RuleInjection, "Swedish", "ignorera|bortse fran|glom > tidigare|foregaende|ovanstaende > instruktion|anvisning"},
	{
		RuleInjection,
		"Danish and Norwegian",
		"ignorer|se bort fra|glem > tidligere|forrige|foregaende|foregaaende|ovenstaende|ovennevnte > instruks|instruktion|anvisning",
	},
	{RuleInjection, "Finnish", "ohita|unohda|jata huomiotta|sivuuta|ala noudata > aiemm|aikaisemm|edellis|ylla olev > ohje|maarays|kasky"},
	{
		RuleInjection,
		"Polish",
		"zignoruj|ignoruj|zapomnij|pomin|odrzuc > poprzedni|wczesniejsz|powyzsz|dotychczasow > instrukcj|polecen|wytyczn",
	},
	{
		RuleInjection,
		"Czech and Slovak",
		"ignoruj|zapomen|nedbej|zabudni > predchozi|predchadzajuc|vyse uveden|vyssie uveden|drivejsi > instrukc|pokyn|prikaz",
	},
	{RuleInjection, "Hungarian", "hagyd figyelmen kivul|felejtsd el|ignorald > korabbi|elozo|fenti > utasitas"},
	{RuleInjection, "Hungarian", "korabbi|elozo|fenti > utasitas > hagyd figyelmen|felejtsd|ignorald"},
	{RuleInjection, "Romanian", "ignora|uita > instructiun|comenzile|indicatiile > anterioare|precedente|de mai sus"},
	{
		RuleInjection,
		"Russian",
		"игнорируй|проигнорируй|забудь|не обращай внимания|отбрось > предыдущ|прежн|вышеуказан|прошл|все > инструкц|указани|команды",
	},
	{RuleInjection, "Ukrainian", "ігноруй|проігноруй|забудь|не зважай > попередн|вищезазначен|усі|всі > інструкці|вказівк"},
	{RuleInjection, "Bulgarian and Serbian", "игнорирай|игнориши|забрави|заборави > предишн|претходн|горн > инструкци|указания|упутств"},
	{RuleInjection, "Greek", "αγνόησε|αγνοήστε|ξέχασε|παράβλεψε > προηγούμεν|παραπάνω > οδηγί|εντολ"},
	{RuleInjection, "Turkish", "onceki|yukaridaki > talimat|komut|yonerge > yok say|gormezden gel|unut|dikkate alma|goz ardi"},
	{RuleInjection, "Arabic", "تجاهل|انس |اهمل > التعليمات|الاوامر|الارشادات > السابق|اعلاه|المسبق"},
	{RuleInjection, "Persian", "دستورات|دستورالعمل|دستورهای > قبلی|پیشین|بالا > نادیده|فراموش"},
	{RuleInjection, "Hebrew", "התעלם|תתעלם|התעלמי|שכח > הוראות|הנחיות > קודמות|לעיל"},
	{RuleInjection, "Hindi", "पिछले|पूर्व|ऊपर|पहले > निर्देश|आदेश > अनदेखा|नज़रअंदाज|नजरअंदाज|भूल"},
	{RuleInjection, "Bengali", "পূর্ববর্তী|আগের > নির্দেশ > উপেক্ষা|ভুলে"},
	{RuleInjection, "Chinese", "忽略|无视|無視|忘记|忘記|不要理会|不要理會|抛弃 > 之前|以前|以上|上述|先前|前面|上面|此前|所有|全部|原有 > 指令|指示|提示词|提示詞|命令|设定"},
	{RuleInjection, "Japanese", "以前の|前の|これまでの|上記の|先の|今までの|すべての|全ての > 指示|命令|指令|プロンプト > 無視|忘れ|破棄"},
	{RuleInjection, "Korean", "이전|앞의|위의|기존|지금까지 > 지시|명령|지침|프롬프트 > 무시|잊"},
	{RuleInjection, "Vietnamese", "bo qua|phot lo|quen > huong dan|chi dan|chi thi|lenh > truoc|o tren|ben tren"},
	{RuleInjection, "Indonesian and Malay", "abaikan|lupakan > instruksi|perintah|petunjuk|arahan > sebelumnya|di atas|terdahulu"},
	{RuleInjection, "Thai", "เพิกเฉย|ละเว้น|ลืม|ไม่ต้องสนใจ > คำสั่ง|คำแนะนำ > ก่อนหน้า|ข้างต้น|ด้านบน|เดิม"},
	{RuleInjection, "Swahili", "puuza|sahau > maagizo|maelekezo > ya awali|yaliyotangulia|ya hapo juu"},

	{RuleConceal, "German", "sage|sag |verrate|erzahle|informiere|erwahne > nutzer|benutzer|anwender|niemand > nicht|nichts|davon"},
	{RuleConceal, "French", "ne dis|ne dites|ninforme|nen informe|ne revele|ne mentionne > utilisateur|operateur|personne"},
	{RuleConceal, "Spanish", "no le digas|no digas|no informes|no reveles|no menciones|sin informar > usuario|operador|nadie"},
	{RuleConceal, "Russian", "не говори|не сообщай|не упоминай|не рассказывай > пользовател|оператор|никому"},
	{RuleConceal, "Chinese", "不要告诉|不要告訴|不要通知|不得告知|别告诉 > 用户|用戶|使用者|任何人"},
	{RuleConceal, "Japanese", "ユーザー|利用者 > 知らせ|伝え|言わ|教え > ないで|ずに|てはいけ"},
	{
		RuleExfiltrate,
		"German",
		"sende|schicke|lade|ubertrage|ubermittle > schlussel|passwort|passworter|zugangsdaten|geheimnis|token|umgebungsvariable > http|server",
	},
	{
		RuleExfiltrate,
		"French",
		"envoie|envoyez|transmets|televerse > cle|mot de passe|identifiants|jeton|secret|variables denvironnement > http|serveur",
	},
	{RuleExfiltrate, "Spanish", "envia|envie|sube|transmite > clave|contrasena|credencial|token|secreto|variables de entorno > http|servidor"},
	{RuleExfiltrate, "Russian", "отправь|перешли|загрузи > ключ|пароль|пароли|токен|секрет|переменные окружения > http|сервер"},
	{RuleExfiltrate, "Chinese", "发送|發送|上传|上傳|泄露 > 密钥|密鑰|令牌|凭据|憑證|密码|密碼|环境变量|環境變數 > http|服务器|伺服器"},
}

// gaps are the greatest gaps between two groups, in bytes of folded text.
var gaps = map[string]int{RuleInjection: 34, RuleRole: 24, RuleConceal: 30, RuleExfiltrate: 70}

// lexicon is the compiled table.
type lexicon struct {
	phrases []phrase
	anchors *automaton
	owners  []anchor
}

// anchor is a first word of a phrase.
type anchor struct {
	phrase int
	length int // of the word, without a space before it
}

// words compiles the table at first use, so that a process without scans does
// not pay for it.
var words = sync.OnceValue(func() *lexicon {
	l := &lexicon{}
	var anchors [][]byte
	for i, row := range phraseTable {
		p := phrase{rule: row.rule, gap: gaps[row.rule]}
		for _, group := range strings.Split(row.text, " > ") {
			var list [][]byte
			for _, word := range strings.Split(group, "|") {
				list = append(list, foldWord(word))
			}
			p.groups = append(p.groups, list)
		}
		for _, word := range p.groups[0] {
			anchors, l.owners = append(anchors, atWordStart(word)), append(l.owners, anchor{i, len(word)})
		}
		l.phrases = append(l.phrases, p)
	}
	l.anchors = newAutomaton(anchors)
	return l
})

// atWordStart adds a leading space to a word that must begin a word. Scripts
// without spaces between words, and those that join small words to the next,
// get none.
func atWordStart(word []byte) []byte {
	if word[0] >= 0x80 {
		return word
	}
	return append([]byte(" "), word...)
}

// rest matches the groups after the first one at the start of text and returns
// the matched length.
func (p *phrase) rest(text []byte) (int, bool) {
	at := 0
	for _, group := range p.groups[1:] {
		best, length := -1, 0
		window := text[at:min(len(text), at+p.gap+32)]
		for _, word := range group {
			i := indexWord(window, word)
			if i >= 0 && i <= p.gap && (best < 0 || i < best) {
				best, length = i, len(word)
			}
		}
		if best < 0 {
			return 0, false
		}
		at += best + length
	}
	return at, true
}

// indexWord returns the start of a word in text, or -1.
func indexWord(text, word []byte) int {
	if word[0] >= 0x80 {
		return bytes.Index(text, word)
	}
	for at := 0; ; {
		i := bytes.Index(text[at:], word)
		if i < 0 {
			return -1
		}
		if at+i > 0 && text[at+i-1] == ' ' {
			return at + i
		}
		at += i + 1
	}
}
