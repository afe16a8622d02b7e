package edgespec;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Tests conversations with a server that answers, is cut off, refuses or is away, and without one. */
public class ChatTest {
    private static final String ASKED = "The quick brown fox jumps over the lazy dog";

    @Rule
    public final TemporaryFolder temporary = new TemporaryFolder();

    private FakeServer server;
    private Settings settings;
    private Chat chat;

    @Before
    public void start() throws IOException {
        server = new FakeServer();
        settings = new Settings();
        settings.server = server.url();
        settings.timeoutMs = 5000;
    }

    @After
    public void stop() throws IOException {
        if (chat != null) {
            chat.close();
        }
        server.close();
        assertEquals("what the server complains of", new ArrayList<String>(), server.faults);
    }

    private Chat chat() {
        chat = new Chat(settings, new ArrayList<Message>());
        return chat;
    }

    private Recorder ask(String text) {
        return ask(text, new Recorder());
    }

    private Recorder ask(String text, Recorder recorder) {
        if (chat == null) {
            chat();
        }
        Stats stats = chat.send(text, recorder);
        Stats last = recorder.stats.get(recorder.stats.size() - 1);
        assertTrue("the last figures are those that send returns", last == stats);
        List<Message> said = chat.messages();
        boolean silent = recorder.text.length() == 0;
        assertEquals(silent ? text : recorder.text.toString(), said.get(said.size() - 1).content);
        return recorder;
    }

    private static Stats last(Recorder recorder) {
        return recorder.stats.get(recorder.stats.size() - 1);
    }

    private static void said(String expected, Recorder recorder) {
        assertEquals(new ArrayList<String>(), recorder.errors);
        assertEquals(expected, recorder.text.toString());
        assertEquals("stop", last(recorder).finishReason);
    }

    private static void failed(String sentence, Recorder recorder) {
        assertEquals(recorder.errors.toString(), 1, recorder.errors.size());
        assertTrue(recorder.errors.get(0), recorder.errors.get(0).contains(sentence));
        assertTrue(recorder.errors.get(0), recorder.errors.get(0).endsWith("."));
        assertEquals("error", last(recorder).finishReason);
    }

    @Test
    public void theTargetsText() {
        Recorder heard = ask(ASKED);
        said(Toy.answer(ASKED), heard);
        Stats stats = last(heard);
        assertEquals(Toy.answer(ASKED).getBytes(StandardCharsets.UTF_8).length + 1, stats.tokens);
        assertTrue("copies are drafted: " + stats.accepted, stats.accepted > 60);
        assertTrue("and shown as such: " + heard.drafted, heard.drafted > 60);
        assertTrue(stats.drafted >= stats.accepted);
        assertEquals("server", stats.source);
        assertTrue(stats.tokensPerSecond > 0);
        assertEquals("user", chat.messages().get(0).role);
        assertEquals("assistant", chat.messages().get(1).role);
    }

    @Test
    public void betweenTwoDraftsTheServerDoesNotGoOn() {
        ask(ASKED);
        FakeServer.Heard before = null;
        int together = 0;
        for (FakeServer.Heard verify : server.heard) {
            if (verify.type() == FakeServer.VERIFY) {
                if (before != null && before.ids().length > 0 && verify.ids().length > 0) {
                    together++;
                    assertEquals(0, verify.ahead());
                } else {
                    assertTrue("a first draft may be followed by plain steps", verify.ahead() > 0);
                }
                before = verify;
            }
        }
        assertTrue("so many drafts came one after another: " + together, together > 0);
    }

    @Test
    public void whatTheServerHasEmittedIsNotThrownAway() throws Exception {
        StopFlag stop = new StopFlag();
        Server remote = new Server(server.url(), "", null, 5000);
        remote.loadVocabulary(5000, stop);
        RemoteVerifier verifier = new RemoteVerifier(remote, 0, 0, 5000, 5000, stop);
        SuffixDrafter lookup = new SuffixDrafter(2, 0);
        Drafting.Remote drafting = new Drafting.Remote(verifier, lookup, null);
        IntList context = new IntList(Toy.encode(Arrays.asList(new Message("user", ASKED))));
        drafting.begin(context.toArray(), new int[0]);
        verifier.begin(context.toArray(), 200);
        for (int i = 0; i < 10; i++) {
            verifier.submit(new int[0]);
            int[] tokens = verifier.result().tokens;
            context.addAll(tokens);
            verifier.accept(tokens);
            drafting.accept(tokens, new RunningStats(), new Recorder());
        }
        while (!verifier.ready()) {
            Thread.sleep(1);
        }
        Draft found = lookup.propose(8);
        DraftEstimate[] estimates = {new DraftEstimate(found.acceptanceProbs, found.tokens.length, 0)};
        Policy policy = new Policy(verifier.costs());
        assertTrue("a draft would pay", policy.choose(estimates, verifier.roundTripS()).depth > 0);
        assertEquals("but the next token is there", 0, drafting.draft(context, 8).length);
        verifier.close();
    }

    @Test
    public void onlyWholeCharactersAreShown() {
        for (String piece : ask("na\u00efve \u4f60\u597d").pieces) {
            assertFalse(piece, piece.contains("\ufffd"));
            assertFalse(piece, Character.isHighSurrogate(piece.charAt(piece.length() - 1)));
        }
        said(Toy.answer("again"), ask("again"));
    }

    @Test
    public void aConversationSendsOnlyWhatIsNew() {
        ask(ASKED);
        ask("And the cat?");
        assertEquals(4, chat.messages().size());
        FakeServer.Heard second = null;
        for (FakeServer.Heard frame : server.heard) {
            second = frame.type() == FakeServer.BEGIN ? frame : second;
        }
        assertTrue("so many tokens were kept: " + second.keep(), second.keep() > 150);
        assertTrue("so many were sent: " + second.ids().length, second.ids().length < 30);
        assertEquals(1, server.count(FakeServer.OPEN));
    }

    @Test
    public void aCutAfterEveryFrame() throws IOException {
        cutEverywhere(false, null);
    }

    @Test
    public void aRestartAfterEveryFrame() throws IOException {
        cutEverywhere(true, null);
    }

    @Test
    public void aCutAfterEveryFrameWhileTheModelDrafts() throws IOException {
        cutEverywhere(true, new ToyModel(2048, 7));
    }

    private void cutEverywhere(boolean forget, ToyModel model) throws IOException {
        settings.model = model;
        int resumed = 0;
        for (int n = 3; ; n++) { // before OPENED it is a server that is not there
            server.forget();
            server.cutAfter.set(n);
            server.heard.clear();
            Recorder heard = new Recorder();
            if (forget) {
                heard = new Recorder() {
                    @Override
                    public void onText(String more, boolean wasDrafted) {
                        super.onText(more, wasDrafted);
                        if (server.cutAfter.get() <= 0) {
                            server.forget();
                        }
                    }
                };
            }
            chat = null;
            said(Toy.answer(ASKED), ask(ASKED, heard));
            assertEquals("cut after " + n, Arrays.<String>asList(), server.faults);
            assertTrue("the server answers again and again, no model steps in", heard.notes.isEmpty());
            chat.close();
            resumed += server.count(FakeServer.OPEN) - 1;
            if (server.cutAfter.get() > 0) {
                assertTrue("so many cuts were survived: " + resumed + " of " + n, resumed > 10);
                return;
            }
        }
    }

    @Test
    public void plainTokensComeWithoutBeingAskedFor() throws Exception {
        server.costs = new long[][] {{1, 1000}, {2, 50000}}; // drafts never pay
        Recorder heard = ask(ASKED);
        said(Toy.answer(ASKED), heard);
        assertEquals(0, last(heard).drafted);
        assertEquals(1, server.count(FakeServer.VERIFY));
        assertTrue(server.count(FakeServer.MORE) > 3);
        for (int i = 0; i < 500 && server.count(FakeServer.CANCEL) == 0; i++) {
            Thread.sleep(10);
        }
        assertEquals("the end is the device's to see", 1, server.count(FakeServer.CANCEL));
    }

    @Test
    public void maxTokensIsExact() {
        settings.maxTokens = 30;
        for (long second : new long[] {21000, 500000}) {
            server.costs = new long[][] {{1, 20000}, {2, second}};
            server.heard.clear();
            chat = null;
            Recorder heard = ask(ASKED);
            assertEquals(Toy.answer(ASKED).substring(0, 30), heard.text.toString());
            assertEquals(30, last(heard).tokens);
            assertEquals("length", last(heard).finishReason);
        }
        long most = 0;
        for (FakeServer.Heard frame : server.heard) {
            most = Math.max(most, frame.round() + frame.ahead());
        }
        assertEquals("nothing is asked for that will not be said", 29, most);
    }

    @Test
    public void cancelKeepsWhatWasSaid() {
        server.delayMs = 5;
        Recorder heard = new Recorder() {
            @Override
            public void onText(String more, boolean wasDrafted) {
                super.onText(more, wasDrafted);
                if (text.length() > 10) {
                    chat.cancel();
                }
            }
        };
        ask(ASKED, heard);
        assertEquals("cancelled", last(heard).finishReason);
        assertTrue(heard.errors.isEmpty());
        assertTrue(Toy.answer(ASKED).startsWith(heard.text.toString()));
        said(Toy.answer("next"), ask("next"));
    }

    @Test(timeout = 30000)
    public void cancelWhileTheServerSaysNothing() throws Exception {
        server.silent = true;
        cancelledAfter(3);
        server.silent = false;
        said(Toy.answer("next"), ask("next"));
    }

    @Test(timeout = 30000)
    public void cancelWhileItIsAskedForTokenIds() throws Exception {
        server.stalls = true;
        cancelledAfter(3);
        server.stalls = false;
        said(Toy.answer("next"), ask("next"));
    }

    private boolean verdictIsDue() {
        return server.silent && server.count(FakeServer.VERIFY) == 0;
    }

    /** Sends a question, and cancels once the server has received so many requests. */
    private void cancelledAfter(final int requests) throws Exception {
        settings.timeoutMs = 60000;
        chat();
        Thread canceller = new Thread() {
            @Override
            public void run() {
                try {
                    while (server.requests.size() < requests || verdictIsDue()) {
                        Thread.sleep(5);
                    }
                } catch (InterruptedException error) {
                    return;
                }
                chat.cancel();
            }
        };
        canceller.start();
        Recorder heard = ask(ASKED);
        canceller.join();
        assertEquals("cancelled", last(heard).finishReason);
        assertTrue(heard.errors.isEmpty());
    }

    @Test
    public void aServerThatSaysNothingIsAway() {
        server.silent = true;
        settings.timeoutMs = 800;
        failed("has not answered for 0.8 s", ask(ASKED));
        server.silent = false;
        said(Toy.answer("next"), ask("next"));
    }

    @Test
    public void aWrongKeyIsSaidAtOnce() {
        server.key = "right";
        settings.key = "wrong";
        settings.model = new ToyModel(2048, 0);
        failed("refuses the key; give one that it knows", ask(ASKED));
        assertEquals("it was asked once", 1, server.requests.size());
        assertEquals(1, chat.messages().size());
        settings.key = "right";
        chat = null;
        said(Toy.answer(ASKED), ask(ASKED));
    }

    @Test
    public void aKeyThatIsTakenAway() {
        ask(ASKED);
        server.key = "another";
        failed("refuses the key; give one that it knows", ask("next"));
    }

    @Test
    public void aKeyThatCannotBeOne() {
        settings.key = "a\r\nb";
        failed("The key has a blank", ask(ASKED));
        assertEquals(0, server.requests.size());
    }

    @Test
    public void noServer() throws IOException {
        server.close();
        failed("o verification server answers at " + settings.server.substring(5), ask(ASKED));
        assertEquals("the question stays", ASKED, chat.messages().get(0).content);
        server = server.again();
        said(Toy.answer("next"), ask("next"));
        assertEquals(3, chat.messages().size());
    }

    @Test
    public void neitherServerNorModel() {
        settings.server = " ";
        failed("neither a server nor a model", ask(ASKED));
    }

    @Test
    public void anAddressThatIsNone() {
        settings.server = "192.168.1.5:8080";
        failed("is no address of a verification server", ask(ASKED));
    }

    @Test
    public void theModelAlone() {
        settings.server = "";
        ToyModel model = new ToyModel(512, 0);
        settings.model = model;
        Recorder heard = ask(ASKED);
        said(Toy.answer(ASKED), heard);
        assertEquals("device", last(heard).source);
        assertEquals(0, last(heard).drafted);
        int before = model.decoded;
        said(Toy.answer("more"), ask("more"));
        int steps = Toy.answer("more").getBytes(StandardCharsets.UTF_8).length + 1;
        assertTrue("the conversation is not read again", model.decoded - before <= steps + 2);
        assertTrue("long prompts are read in pieces", model.largest <= ModelCache.CHUNK);
    }

    @Test
    public void aModelThatFails() {
        settings.server = "";
        ToyModel model = new ToyModel(512, 0);
        model.failAfter = 20;
        settings.model = model;
        Recorder heard = ask(ASKED);
        failed("The engine says no", heard);
        assertTrue(Toy.answer(ASKED).startsWith(heard.text.toString()));
        model.failAfter = Integer.MAX_VALUE;
        said(Toy.answer("next"), ask("next"));
    }

    @Test
    public void theModelGoesOnWhereTheServerStopped() throws IOException {
        settings.model = new ToyModel(2048, 0);
        goesOn();
    }

    @Test
    public void aModelOfAnotherVocabularyGoesOnToo() throws IOException {
        ToyModel model = new ToyModel(2048, 0);
        model.hash = new byte[16];
        settings.model = model;
        goesOn();
    }

    private void goesOn() throws IOException {
        settings.timeoutMs = 1000;
        server.delayMs = 2;
        server.costs = new long[][] {{1, 1000}, {2, 50000}}; // plain: one token after another
        Recorder heard = new Recorder() {
            @Override
            public void onText(String more, boolean wasDrafted) {
                super.onText(more, wasDrafted);
                if (text.length() == 60) {
                    try {
                        server.close();
                    } catch (IOException error) {
                        errors.add(error.toString());
                    }
                }
            }
        };
        said(Toy.answer(ASKED), ask(ASKED, heard));
        assertEquals(heard.notes.toString(), 1, heard.notes.size());
        assertTrue(heard.notes.get(0), heard.notes.get(0).endsWith("the model on the device answers."));
        assertEquals("device", last(heard).source);
        Recorder still = ask("still away?");
        said(Toy.answer("still away?"), still);
        assertTrue("that was said already: " + still.notes, still.notes.isEmpty());
        server = server.again();
        Recorder back = ask("back?");
        said(Toy.answer("back?"), back);
        assertEquals(Arrays.asList("The server is back."), back.notes);
        assertEquals("server", last(back).source);
    }

    @Test
    public void theModelDrafts() {
        ToyModel model = new ToyModel(2048, 0);
        settings.model = model;
        server.costs = new long[][] {{1, 200000}, {8, 210000}, {32, 230000}};
        server.delayMs = 20; // it reads while it waits
        String asked = "abcdefghijklmnopqrstuvwxyz0123456789";
        Recorder heard = ask(asked);
        said(Toy.answer(asked), heard);
        assertTrue("steps: " + server.count(FakeServer.VERIFY), server.count(FakeServer.VERIFY) < 30);
        assertTrue(model.decoded > 0);
    }

    @Test
    public void aModelThatFailsNoLongerDrafts() {
        ToyModel model = new ToyModel(2048, 0);
        model.failAfter = 1;
        settings.model = model;
        server.costs = new long[][] {{1, 200000}, {8, 210000}};
        server.delayMs = 20;
        Recorder heard = ask(ASKED);
        said(Toy.answer(ASKED), heard);
        assertEquals(1, heard.notes.size());
        assertTrue(heard.notes.get(0), heard.notes.get(0).contains("no longer drafts"));
    }

    @Test
    public void aModelOfAnotherVocabularyDoesNotDraft() {
        ToyModel model = new ToyModel(2048, 0);
        model.hash = new byte[16];
        settings.model = model;
        said(Toy.answer(ASKED), ask(ASKED));
        assertEquals(0, model.decoded);
    }

    @Test
    public void needIsAnsweredWithTheContext() {
        server.firstSay.add(FakeServer.need(3, 0));
        server.firstSay.add(FakeServer.need(0, 0));
        said(Toy.answer(ASKED), ask(ASKED));
        assertEquals(3, server.count(FakeServer.BEGIN));
    }

    @Test
    public void needWithoutEnd() {
        for (int i = 0; i < 9; i++) {
            server.firstSay.add(FakeServer.need(0, 0));
        }
        failed("asks for the same context again and again", ask(ASKED));
        server.firstSay.clear();
        said(Toy.answer("next"), ask("next"));
    }

    @Test
    public void busyIsAskedAgain() {
        server.firstSay.add(FakeServer.busy(20, "the cache is full"));
        server.firstSay.add(FakeServer.busy(0, "the cache is full"));
        said(Toy.answer(ASKED), ask(ASKED));
    }

    @Test
    public void busyForTooLong() {
        settings.timeoutMs = 800;
        for (int i = 0; i < 9; i++) {
            server.firstSay.add(FakeServer.busy(300, "the cache is full"));
        }
        failed("has no room: the cache is full", ask(ASKED));
    }

    @Test
    public void allSessionsTaken() {
        server.refusal = FakeServer.busy(5000, "all 256 sessions are taken");
        failed("all 256 sessions are taken", ask(ASKED));
    }

    @Test
    public void errorsByTheirCode() {
        for (int code = 1; code <= Frame.Error.CONTEXT_FULL; code++) {
            server.firstSay.add(FakeServer.error(code, "told by code " + code));
            failed("told by code " + code, ask(ASKED));
            said(Toy.answer("next"), ask("next"));
        }
    }

    @Test
    public void aServerThatCloses() {
        server.firstSay.add(FakeServer.error(Frame.Error.CLOSING, "the server is shutting down"));
        said(Toy.answer(ASKED), ask(ASKED));
        assertEquals(2, server.count(FakeServer.OPEN));
    }

    @Test
    public void noRoomForAnotherConnection() {
        server.status = "503 Service Unavailable";
        failed("has no room now (HTTP 503)", ask(ASKED));
        server.status = "404 Not Found";
        failed("is no verification server", ask(ASKED));
    }

    @Test
    public void anotherModelAfterARestart() {
        server.delayMs = 2;
        Recorder heard = ask(ASKED, new Recorder() {
            @Override
            public void onText(String more, boolean wasDrafted) {
                super.onText(more, wasDrafted);
                if (text.length() > 20 && server.model.equals("toy")) {
                    server.model = "other";
                    server.forget();
                    server.cut();
                }
            }
        });
        failed("this server has other", heard);
        assertTrue(heard.text.length() > 20);
        said(Toy.answer("next"), ask("next"));
    }

    @Test
    public void aVerdictThatCannotBe() {
        server.firstSay.add(FakeServer.answer(0, 99, 1));
        failed("accepted 99 of", ask(ASKED));
        server.firstSay.add(FakeServer.answer(0, 0, 9999));
        failed("added token 9999", ask(ASKED));
        server.firstSay.add(server.opened(new byte[16]));
        failed("sent another frame instead of a verdict", ask(ASKED));
        said(Toy.answer("next"), ask("next"));
    }

    @Test
    public void theVocabularyIsKept() throws IOException {
        settings.folder = temporary.getRoot();
        said(Toy.answer(ASKED), ask(ASKED));
        File kept = new File(temporary.getRoot(), Server.hex(Toy.hash()) + ".vocabulary");
        assertEquals(Toy.vocabulary().length, kept.length());
        chat = null;
        said(Toy.answer(ASKED), ask(ASKED));
        String asked = "GET /v1/vocabulary HTTP/1.1 \"" + Server.hex(Toy.hash()) + "\"";
        assertTrue(server.requests.toString(), server.requests.contains(asked));
        FileOutputStream out = new FileOutputStream(kept);
        out.write(Toy.vocabulary(), 0, 100);
        out.close();
        chat = null;
        failed("was damaged", ask(ASKED));
        said(Toy.answer("next"), ask("next"));
        assertEquals(Toy.vocabulary().length, kept.length());
    }

    @Test
    public void aFolderThatIsNotThere() {
        settings.folder = new File(temporary.getRoot(), "nowhere");
        said(Toy.answer(ASKED), ask(ASKED));
    }

    @Test
    public void oldMessagesMakeRoom() {
        server.contextSize = 500;
        settings.maxTokens = 200;
        Recorder heard = ask(ASKED);
        said(Toy.answer(ASKED), heard);
        ask(ASKED + " once");
        Recorder third = ask(ASKED + " more");
        said(Toy.answer(ASKED + " more"), third);
        assertEquals(third.notes.toString(), 1, third.notes.size());
        assertTrue(third.notes.get(0).contains("the oldest messages are left out"));
        assertEquals("they stay in the conversation", 6, chat.messages().size());
    }

    @Test
    public void aMessageTooLongForTheContext() {
        server.contextSize = 100;
        failed("the context has room for 75 beside the answer", ask(new String(new char[90])));
        said(Toy.answer("hi"), ask("hi"));
    }

    @Test
    public void theContextEndsTheAnswer() {
        server.contextSize = 100;
        Recorder heard = ask("0123456789012345678901234567890123456789");
        assertEquals("length", last(heard).finishReason);
        assertEquals(100 + 1 - 43, last(heard).tokens);
        assertTrue(heard.errors.isEmpty());
    }

    @Test
    public void closeSaysGoodbye() throws Exception {
        ask(ASKED);
        chat.close();
        for (int i = 0; i < 500 && server.goodbyes.get() == 0; i++) {
            Thread.sleep(10);
        }
        assertEquals(1, server.goodbyes.get());
    }

    @Test
    public void settingsAreCopied() {
        chat();
        settings.server = "";
        said(Toy.answer(ASKED), ask(ASKED));
    }
}
