"""The words of the synthetic grammar, one per line: add a line and the grammar uses it.

:mod:`fairseq_phrase.synthetic.lexicon` reads these tables and explains their columns.
"""

# German, gender, plural, genitive singular, English, English plural, class; for a place also the
# German and the English preposition that means being there.
# Classes: p person, a animal, t thing, r something to read, f food, o tool, v vehicle, l place.
NOUNS = """
Mann m Männer Mannes man men p
Frau f Frauen Frau woman women p
Kind n Kinder Kindes child children p
Mädchen n Mädchen Mädchens girl girls p
Junge m Jungen Jungen boy boys p
Lehrer m Lehrer Lehrers teacher teachers p
Ärztin f Ärztinnen Ärztin doctor doctors p
Student m Studenten Studenten student students p
Nachbar m Nachbarn Nachbarn neighbour neighbours p
Bäcker m Bäcker Bäckers baker bakers p
Köchin f Köchinnen Köchin cook cooks p
Sängerin f Sängerinnen Sängerin singer singers p
König m Könige Königs king kings p
Königin f Königinnen Königin queen queens p
Polizist m Polizisten Polizisten policeman policemen p
Soldat m Soldaten Soldaten soldier soldiers p
Bruder m Brüder Bruders brother brothers p
Schwester f Schwestern Schwester sister sisters p
Mutter f Mütter Mutter mother mothers p
Vater m Väter Vaters father fathers p
Onkel m Onkel Onkels uncle uncles p
Tante f Tanten Tante aunt aunts p
Gast m Gäste Gastes guest guests p
Freund m Freunde Freundes friend friends p
Richterin f Richterinnen Richterin judge judges p
Bauer m Bauern Bauern farmer farmers p
Künstlerin f Künstlerinnen Künstlerin artist artists p
Dieb m Diebe Diebes thief thieves p
Anwalt m Anwälte Anwalts lawyer lawyers p
Baby n Babys Babys baby babies p
Hund m Hunde Hundes dog dogs a
Katze f Katzen Katze cat cats a
Pferd n Pferde Pferdes horse horses a
Vogel m Vögel Vogels bird birds a
Maus f Mäuse Maus mouse mice a
Kuh f Kühe Kuh cow cows a
Schaf n Schafe Schafes sheep sheep a
Hase m Hasen Hasen hare hares a
Affe m Affen Affen monkey monkeys a
Fuchs m Füchse Fuchses fox foxes a
Ente f Enten Ente duck ducks a
Esel m Esel Esels donkey donkeys a
Ziege f Ziegen Ziege goat goats a
Elefant m Elefanten Elefanten elephant elephants a
Kaninchen n Kaninchen Kaninchens rabbit rabbits a
Stuhl m Stühle Stuhls chair chairs t
Lampe f Lampen Lampe lamp lamps t
Tasche f Taschen Tasche bag bags t
Bild n Bilder Bildes picture pictures t
Hut m Hüte Hutes hat hats t
Kleid n Kleider Kleides dress dresses t
Mantel m Mäntel Mantels coat coats t
Ball m Bälle Balles ball balls t
Uhr f Uhren Uhr clock clocks t
Flasche f Flaschen Flasche bottle bottles t
Ring m Ringe Ringes ring rings t
Koffer m Koffer Koffers suitcase suitcases t
Blume f Blumen Blume flower flowers t
Geschenk n Geschenke Geschenks present presents t
Puppe f Puppen Puppe doll dolls t
Korb m Körbe Korbes basket baskets t
Teppich m Teppiche Teppichs carpet carpets t
Glas n Gläser Glases glass glasses t
Buch n Bücher Buches book books r
Brief m Briefe Briefes letter letters r
Zeitung f Zeitungen Zeitung newspaper newspapers r
Roman m Romane Romans novel novels r
Gedicht n Gedichte Gedichts poem poems r
Bericht m Berichte Berichts report reports r
Geschichte f Geschichten Geschichte story stories r
Rechnung f Rechnungen Rechnung bill bills r
Vertrag m Verträge Vertrags contract contracts r
Rezept n Rezepte Rezepts recipe recipes r
Apfel m Äpfel Apfels apple apples f
Kuchen m Kuchen Kuchens cake cakes f
Ei n Eier Eis egg eggs f
Birne f Birnen Birne pear pears f
Kartoffel f Kartoffeln Kartoffel potato potatoes f
Fisch m Fische Fisches fish fish f
Suppe f Suppen Suppe soup soups f
Brötchen n Brötchen Brötchens roll rolls f
Orange f Orangen Orange orange oranges f
Pfannkuchen m Pfannkuchen Pfannkuchens pancake pancakes f
Fernrohr n Fernrohre Fernrohrs telescope telescopes o
Kamera f Kameras Kamera camera cameras o
Spiegel m Spiegel Spiegels mirror mirrors o
Mikroskop n Mikroskope Mikroskops microscope microscopes o
Lupe f Lupen Lupe magnifier magnifiers o
Telefon n Telefone Telefons phone phones o
Taschenlampe f Taschenlampen Taschenlampe torch torches o
Roboter m Roboter Roboters robot robots o
Drohne f Drohnen Drohne drone drones o
Auto n Autos Autos car cars v
Fahrrad n Fahrräder Fahrrads bicycle bicycles v
Zug m Züge Zuges train trains v
Bus m Busse Busses bus buses v
Schiff n Schiffe Schiffes ship ships v
Wagen m Wagen Wagens cart carts v
Boot n Boote Bootes boat boats v
Garten m Gärten Gartens garden gardens l in in
Küche f Küchen Küche kitchen kitchens l in in
Schule f Schulen Schule school schools l in at
Park m Parks Parks park parks l in in
Wald m Wälder Waldes forest forests l in in
Stadt f Städte Stadt city cities l in in
Dorf n Dörfer Dorfes village villages l in in
Haus n Häuser Hauses house houses l in in
Bahnhof m Bahnhöfe Bahnhofs station stations l an at
Markt m Märkte Marktes market markets l auf at
Brücke f Brücken Brücke bridge bridges l auf on
Straße f Straßen Straße street streets l auf on
Wiese f Wiesen Wiese meadow meadows l auf in
Strand m Strände Strandes beach beaches l an on
Fluss m Flüsse Flusses river rivers l an at
See m Seen Sees lake lakes l an at
Turm m Türme Turmes tower towers l auf on
Hotel n Hotels Hotels hotel hotels l in at
Museum n Museen Museums museum museums l in at
Kirche f Kirchen Kirche church churches l in in
Fenster n Fenster Fensters window windows l an at
Krankenhaus n Krankenhäuser Krankenhauses hospital hospitals l in at
Insel f Inseln Insel island islands l auf on
Schloss n Schlösser Schlosses castle castles l in in
Keller m Keller Kellers cellar cellars l in in
"""

NAMES = "Anna Peter Maria Lukas Sophie Jonas Clara Felix Emma Paul Laura Max Lena Tom Julia David"

# German infinitive ("|" after a separable particle), third person singular, participle, auxiliary;
# English base ("+" before a particle), third person, past, participle; classes of the subject, of
# the object ("-": none); traits.
# Traits: p passive, d also a recipient, t can be done with a tool, v can be done "von" somebody,
# g goes somewhere, c takes a "dass" clause, x takes a "zu" infinitive.
VERBS = """
sehen sieht gesehen haben see sees saw seen pa patrvlo pt
suchen sucht gesucht haben seek seeks sought sought pa patfro pt
finden findet gefunden haben find finds found found pa patfrov pt
beobachten beobachtet beobachtet haben watch watches watched watched pa pav pt
filmen filmt gefilmt haben film films filmed filmed p patvl pt
untersuchen untersucht untersucht haben examine examines examined examined p patrvo pt
zeichnen zeichnet gezeichnet haben draw draws drew drawn p patvl p
lieben liebt geliebt haben love loves loved loved p patrf p
hören hört gehört haben hear hears heard heard pa pav p
rufen ruft gerufen haben call calls called called p pa p
besuchen besucht besucht haben visit visits visited visited p pl p
grüßen grüßt gegrüßt haben greet greets greeted greeted p p p
retten rettet gerettet haben save saves saved saved p pa p
verfolgen verfolgt verfolgt haben chase chases chased chased pa pav p
füttern füttert gefüttert haben feed feeds fed fed p a p
waschen wäscht gewaschen haben wash washes washed washed p patv p
lesen liest gelesen haben read reads read read p r p
schreiben schreibt geschrieben haben write writes wrote written p r p
essen isst gegessen haben eat eats ate eaten pa f p
kochen kocht gekocht haben cook cooks cooked cooked p f p
backen backt gebacken haben bake bakes baked baked p f p
kaufen kauft gekauft haben buy buys bought bought p tfrova pv
stehlen stiehlt gestohlen haben steal steals stole stolen p tfrova pv
nehmen nimmt genommen haben take takes took taken p tfro pv
mieten mietet gemietet haben rent rents rented rented p vo pv
bekommen bekommt bekommen haben get gets got gotten p tfro v
tragen trägt getragen haben carry carries carried carried p tfoa p
malen malt gemalt haben paint paints painted painted p patvl p
reparieren repariert repariert haben repair repairs repaired repaired p ovt p
verlieren verliert verloren haben lose loses lost lost p tro p
brauchen braucht gebraucht haben need needs needed needed p ptrfov -
geben gibt gegeben haben give gives gave given p tfro d
zeigen zeigt gezeigt haben show shows showed shown p tfrov d
schicken schickt geschickt haben send sends sent sent p tfro d
verkaufen verkauft verkauft haben sell sells sold sold p tfrova d
bringen bringt gebracht haben bring brings brought brought p tfro d
an|rufen ruft angerufen haben call+up calls called called p p p
auf|wecken weckt aufgeweckt haben wake+up wakes woke woken p pa p
ab|holen holt abgeholt haben pick+up picks picked picked p ptr pv
weg|werfen wirft weggeworfen haben throw+away throws threw thrown p tfr p
auf|heben hebt aufgehoben haben lift+up lifts lifted lifted p tfro p
mit|bringen bringt mitgebracht haben bring+along brings brought brought p ptfro p
ein|packen packt eingepackt haben wrap+up wraps wrapped wrapped p tfro p
auf|essen isst aufgegessen haben eat+up eats ate eaten pa f p
zurück|geben gibt zurückgegeben haben give+back gives gave given p tro p
auf|schreiben schreibt aufgeschrieben haben write+down writes wrote written p r p
aus|suchen sucht ausgesucht haben pick+out picks picked picked p tfroa p
ein|laden lädt eingeladen haben invite invites invited invited p p p
auf|halten hält aufgehalten haben hold+up holds held held p p p
vor|bereiten bereitet vorbereitet haben prepare prepares prepared prepared p fr p
auf|wachen wacht aufgewacht sein wake+up wakes woke woken pa - -
auf|stehen steht aufgestanden sein get+up gets got gotten p - -
weg|laufen läuft weggelaufen sein run+away runs ran run pa - -
zurück|kommen kommt zurückgekommen sein come+back comes came come p - -
ein|schlafen schläft eingeschlafen sein doze+off dozes dozed dozed pa - -
schlafen schläft geschlafen haben sleep sleeps slept slept pa - -
lachen lacht gelacht haben laugh laughs laughed laughed p - -
weinen weint geweint haben cry cries cried cried p - -
arbeiten arbeitet gearbeitet haben work works worked worked p - -
singen singt gesungen haben sing sings sang sung p - -
tanzen tanzt getanzt haben dance dances danced danced p - -
spielen spielt gespielt haben play plays played played pa - -
warten wartet gewartet haben wait waits waited waited pa - -
sitzen sitzt gesessen haben sit sits sat sat pa - -
gehen geht gegangen sein go goes went gone p - g
fahren fährt gefahren sein drive drives drove driven p - g
laufen läuft gelaufen sein run runs ran run pa - g
reisen reist gereist sein travel travels travelled travelled p - g
sagen sagt gesagt haben say says said said p - c
glauben glaubt geglaubt haben believe believes believed believed p - c
behaupten behauptet behauptet haben claim claims claimed claimed p - c
bemerken bemerkt bemerkt haben notice notices noticed noticed p - c
träumen träumt geträumt haben dream dreams dreamt dreamt p - c
versuchen versucht versucht haben try tries tried tried p - x
hoffen hofft gehofft haben hope hopes hoped hoped p - x
beschließen beschließt beschlossen haben decide decides decided decided p - x
vergessen vergisst vergessen haben forget forgets forgot forgotten p - x
versprechen verspricht versprochen haben promise promises promised promised p - x
"""

# German, its form before an ending, English, classes of nouns it fits.
ADJECTIVES = """
alt alt old patrovl
jung jung young pa
klein klein small patrovl
groß groß big atovl
neu neu new trovl
schön schön beautiful patrvl
rot rot red tv
blau blau blue tv
grün grün green tv
weiß weiß white atv
schwarz schwarz black atov
braun braun brown at
müde müd tired pa
glücklich glücklich happy p
traurig traurig sad p
hungrig hungrig hungry pa
freundlich freundlich friendly p
klug klug clever pa
fleißig fleißig hardworking p
faul faul lazy pa
mutig mutig brave pa
berühmt berühmt famous pr
reich reich rich p
arm arm poor p
krank krank sick pa
schnell schnell fast av
wild wild wild a
seltsam seltsam strange patro
teuer teur expensive trov
billig billig cheap trov
lang lang long r
interessant interessant interesting r
süß süß sweet f
frisch frisch fresh f
lecker lecker tasty f
ruhig ruhig quiet l
einsam einsam lonely pl
höflich höflich polite p
"""

# German, English, kind (date, frequency, manner), tenses it goes with ("*": all).
ADVERBS = """
heute today date *
gestern yesterday date past
morgen tomorrow date future
jetzt now date present
bald soon date future
oft often frequency *
immer always frequency *
manchmal sometimes frequency *
selten rarely frequency *
leise quietly manner *
langsam slowly manner *
vorsichtig carefully manner *
heimlich secretly manner *
sofort immediately manner *
plötzlich suddenly manner past
"""

QUESTION_WORDS = "warum why, wann when, wo where, wie how"

CONJUNCTIONS = """
weil because
obwohl although
wenn if
während while
bevor before
bis until
"""
