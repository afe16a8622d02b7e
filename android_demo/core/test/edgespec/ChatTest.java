package edgespec;

import static org.junit.Assert.*;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
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
    private final List<Message> conversation = new ArrayList<>();

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
        assertEquals("what the server complains of", List.of(), server.faults);
    }

    private Recorder ask(String text) { return ask(text, new Recorder()); }

    private Recorder ask(String text, Recorder recorder) {
        if (chat == null) {
            chat = new Chat(settings);
            conversation.clear();
        }
        List<Message> asked = new ArrayList<>(conversation);
        asked.add(new Message("user", text));
        Stats stats = chat.send(asked, recorder);
        assertTrue("the last figures are those that send returns", recorder.last() == stats);
        if (recorder.text.length() > 0) {
            conversation.addAll(asked.subList(conversation.size(), asked.size()));
            conversation.add(new Message("assistant", recorder.text.toString()));
        }
        return recorder;
    }

    private static void said(String expected, Recorder recorder) {
        assertEquals(List.of(), recorder.errors);
        assertEquals(expected, recorder.text.toString());
        assertEquals("stop", recorder.last().finishReason);
    }

    /** Asks a question and checks the answer. */
    private Recorder answered(String text) {
        Recorder heard = ask(text);
        said(Toy.answer(text), heard);
        return heard;
    }

    private static void failed(String sentence, Recorder recorder) {
        assertEquals(recorder.errors.toString(), 1, recorder.errors.size());
        String error = recorder.errors.get(0);
        assertTrue(error, error.contains(sentence) && error.endsWith("."));
        assertEquals("error", recorder.last().finishReason);
    }

    /** A recorder that runs something once the answer has more than so many characters. */
    private static Recorder after(int length, Runnable action) {
        return new Recorder() {
            private boolean done;

            @Override
            public void onText(String more, boolean wasDrafted) {
                super.onText(more, wasDrafted);
                if (!done && text.length() > length) {
                    done = true;
                    action.run();
                }
            }
        };
    }

    @Test
    public void theTargetsText() {
        Recorder heard = answered(ASKED);
        Stats stats = heard.last();
        assertEquals(Toy.bytes(Toy.answer(ASKED)).length + 1, stats.tokens);
        assertTrue("copies are drafted: " + stats.accepted, stats.accepted > 60);
        assertTrue("and shown as such: " + heard.drafted, heard.drafted > 60);
        assertTrue(stats.drafted >= stats.accepted);
        assertEquals("server", stats.source);
        assertTrue(stats.tokensPerSecond > 0);
        FakeServer.Heard before = null;
        int together = 0;
        for (FakeServer.Heard verify : server.heard) {
            if (verify.type() == FakeServer.VERIFY) {
                if (before != null && before.ids().length > 0 && verify.ids().length > 0) {
                    together++;
                    assertEquals("between two drafts the server does not go on", 0, verify.ahead());
                } else {
                    assertTrue("a first draft may be followed by plain steps", verify.ahead() > 0);
                }
                before = verify;
            }
        }
        assertTrue("so many drafts came one after another: " + together, together > 0);
    }

    @Test
    public void aConversationSendsOnlyWhatIsNew() {
        ask(ASKED);
        ask("And the cat?");
        FakeServer.Heard second = null;
        for (FakeServer.Heard frame : server.heard) {
            second = frame.type() == FakeServer.BEGIN ? frame : second;
        }
        assertTrue("so many tokens were kept: " + second.keep(), second.keep() > 150);
        assertTrue("so many were sent: " + second.ids().length, second.ids().length < 30);
        assertEquals(1, server.count(FakeServer.OPEN));
    }

    @Test
    public void aCutAfterEveryFrame() {
        cutEverywhere(false);
    }

    @Test
    public void aRestartAfterEveryFrameWhileTheModelDrafts() {
        settings.model = new Toy(2048, 7);
        cutEverywhere(true);
    }

    private void cutEverywhere(boolean forget) {
        int resumed = 0;
        for (int n = 3; server.cutAfter.get() <= 0 || n == 3; n++) { // before OPENED it is a server that is not there
            server.forget();
            server.cutAfter.set(n);
            server.heard.clear();
            server.forgetsWhenCut = forget;
            chat = null;
            Recorder heard = answered(ASKED);
            assertEquals("cut after " + n, List.of(), server.faults);
            assertTrue("the server answers again and again, no model steps in", heard.notes.isEmpty());
            chat.close();
            resumed += server.count(FakeServer.OPEN) - 1;
        }
        assertTrue("so many cuts were survived: " + resumed, resumed > 10);
    }

    @Test
    public void plainTokensComeWithoutBeingAskedFor() throws Exception {
        server.costs = new long[][] {{1, 1000}, {2, 50000}}; // drafts never pay
        assertEquals(0, answered(ASKED).last().drafted);
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
            assertEquals(30, heard.last().tokens);
            assertEquals("length", heard.last().finishReason);
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
        Recorder heard = ask(ASKED, after(10, () -> chat.cancel()));
        assertEquals("cancelled", heard.last().finishReason);
        assertTrue(heard.errors.isEmpty());
        assertTrue(Toy.answer(ASKED).startsWith(heard.text.toString()));
        answered("next");
    }

    @Test(timeout = 30000)
    public void cancelWhileTheServerSaysNothing() throws Exception {
        settings.timeoutMs = 60000;
        server.silent = true;
        cancelled();
        server.silent = false;
        answered("next");
        server.stalls = true;
        cancelled();
        server.stalls = false;
        answered("last");
    }

    /** Asks a question and cancels it after the server has got its last request. */
    private void cancelled() throws Exception {
        int requests = server.requests.size();
        Thread canceller = new Thread(() -> {
            while (server.requests.size() == requests || server.silent && server.count(FakeServer.VERIFY) == 0) {
                Thread.yield();
            }
            chat.cancel();
        });
        canceller.start();
        Recorder heard = ask(ASKED);
        canceller.join();
        assertEquals("cancelled", heard.last().finishReason);
        assertTrue(heard.errors.isEmpty());
    }

    @Test
    public void aServerThatSaysNothingIsAway() {
        server.silent = true;
        settings.timeoutMs = 800;
        failed("has not answered for 0.8 s", ask(ASKED));
        server.silent = false;
        answered("next");
    }

    @Test
    public void keys() {
        server.key = "right";
        settings.key = "wrong";
        settings.model = new Toy(2048, 0);
        failed("refuses the key; give one that it knows", ask(ASKED));
        assertEquals("it was asked once", 1, server.requests.size());
        settings.key = "right";
        chat = null;
        answered(ASKED);
        server.key = "another";
        failed("refuses the key; give one that it knows", ask("next"));
        settings.key = "a\r\nb";
        chat = null;
        failed("The key has a blank", ask(ASKED));
    }

    @Test
    public void noServer() throws IOException {
        server.close();
        failed("o verification server answers at " + server.name(), ask(ASKED));
        server = server.again();
        answered("next");
        chat = null;
        settings.server = " ";
        failed("neither a server nor a model", ask(ASKED));
        chat = null;
        settings.server = "192.168.1.5:8080";
        failed("is no address of a verification server", ask(ASKED));
    }

    @Test
    public void theModelAlone() {
        settings.server = "";
        Toy model = new Toy(512, 0);
        settings.model = model;
        Recorder heard = answered(ASKED);
        assertEquals("device", heard.last().source);
        assertEquals(0, heard.last().drafted);
        int before = model.decoded;
        answered("more");
        int steps = Toy.bytes(Toy.answer("more")).length + 1;
        assertTrue("the conversation is not read again", model.decoded - before <= steps + 2);
        assertTrue("long prompts are read in pieces", model.largest <= ModelCache.CHUNK);
        model.failAfter = model.decoded + 20;
        failed("The engine says no", ask(ASKED));
        model.failAfter = Integer.MAX_VALUE;
        answered("next");
    }

    @Test
    public void theModelGoesOnWhereTheServerStopped() throws IOException {
        goesOn(new Toy(2048, 0));
    }

    @Test
    public void aModelOfAnotherVocabularyGoesOnToo() throws IOException {
        Toy model = new Toy(2048, 0);
        model.hash = new byte[16];
        goesOn(model);
    }

    private void goesOn(Toy model) throws IOException {
        settings.model = model;
        settings.timeoutMs = 1000;
        server.delayMs = 2;
        server.costs = new long[][] {{1, 1000}, {2, 50000}}; // plain: one token after another
        Recorder heard = ask(ASKED, after(60, () -> {
            try {
                server.close();
            } catch (IOException error) {
                throw new AssertionError(error);
            }
        }));
        said(Toy.answer(ASKED), heard);
        assertEquals(heard.notes.toString(), 1, heard.notes.size());
        assertTrue(heard.notes.get(0), heard.notes.get(0).endsWith("the model on the device answers."));
        assertEquals("device", heard.last().source);
        assertEquals("that was said already", List.of(), answered("still away?").notes);
        server = server.again();
        Recorder back = answered("back?");
        assertEquals(List.of("The server is back."), back.notes);
        assertEquals("server", back.last().source);
    }

    @Test
    public void theModelDrafts() {
        Toy model = new Toy(2048, 0);
        settings.model = model;
        server.costs = new long[][] {{1, 200000}, {8, 210000}, {32, 230000}};
        server.delayMs = 20; // it reads while it waits
        answered("abcdefghijklmnopqrstuvwxyz0123456789");
        assertTrue("steps: " + server.count(FakeServer.VERIFY), server.count(FakeServer.VERIFY) < 30);
        assertTrue(model.decoded > 0);
        model.failAfter = model.decoded;
        Recorder heard = answered(ASKED);
        assertEquals(1, heard.notes.size());
        assertTrue(heard.notes.get(0), heard.notes.get(0).contains("no longer drafts"));
    }

    @Test
    public void needIsAnsweredWithTheContext() {
        server.firstSay.addAll(List.of(FakeServer.need(3, 0), FakeServer.need(0, 0)));
        answered(ASKED);
        assertEquals(3, server.count(FakeServer.BEGIN));
        for (int i = 0; i < 9; i++) {
            server.firstSay.add(FakeServer.need(0, 0));
        }
        failed("asks for the same context again and again", ask(ASKED));
        server.firstSay.clear();
        answered("next");
    }

    @Test
    public void busyIsAskedAgain() {
        server.firstSay.addAll(List.of(FakeServer.busy(20, "the cache is full"), FakeServer.busy(0, "it is full")));
        answered(ASKED);
        chat = null;
        settings.timeoutMs = 800;
        for (int i = 0; i < 9; i++) {
            server.firstSay.add(FakeServer.busy(300, "the cache is full"));
        }
        failed("has no room: the cache is full", ask(ASKED));
        chat = null;
        server.refusal = FakeServer.busy(5000, "all 256 sessions are taken");
        failed("all 256 sessions are taken", ask(ASKED));
    }

    @Test
    public void errorsOfTheServer() {
        for (int code = 1; code <= Frame.Error.CONTEXT_FULL; code++) {
            server.firstSay.add(FakeServer.error(code, "told by code " + code));
            failed("told by code " + code, ask(ASKED));
            answered("next");
        }
        int connections = server.connections();
        server.firstSay.add(FakeServer.error(Frame.Error.CLOSING, "the server is shutting down"));
        answered(ASKED);
        assertEquals("it asks again", connections + 1, server.connections());
    }

    @Test
    public void anotherModelAfterARestart() {
        server.delayMs = 2;
        Recorder heard = ask(ASKED, after(20, () -> {
            server.model = "other";
            server.forget();
            server.cut();
        }));
        failed("this server has other", heard);
        assertTrue(heard.text.length() > 20);
        answered("next");
    }

    @Test
    public void aVerdictThatCannotBe() {
        server.firstSay.add(FakeServer.answer(0, 99, 1));
        failed("accepted 99 of", ask(ASKED));
        server.firstSay.add(FakeServer.answer(0, 0, 9999));
        failed("added token 9999", ask(ASKED));
        server.firstSay.add(server.opened(new byte[16]));
        failed("sent another frame instead of a verdict", ask(ASKED));
        answered("next");
    }

    @Test
    public void theVocabularyIsKept() throws IOException {
        settings.folder = temporary.getRoot();
        answered(ASKED);
        File kept = new File(temporary.getRoot(), "vocabulary");
        assertEquals(Toy.vocabulary().length, kept.length());
        chat = null;
        answered(ASKED);
        String asked = "GET /v1/vocabulary HTTP/1.1 \"" + Server.hex(Toy.hash()) + "\"";
        assertTrue(server.requests.toString(), server.requests.contains(asked));
        Files.write(kept.toPath(), Arrays.copyOf(Toy.vocabulary(), 100));
        chat = null;
        answered("a damaged file is fetched anew");
        assertEquals(Toy.vocabulary().length, kept.length());
        settings.folder = new File(temporary.getRoot(), "nowhere");
        chat = null;
        answered("no folder");
    }

    @Test
    public void oldMessagesMakeRoom() {
        server.contextSize = 500;
        settings.maxTokens = 200;
        ask(ASKED);
        ask(ASKED + " once");
        List<String> notes = answered(ASKED + " more").notes;
        assertEquals(notes.toString(), 1, notes.size());
        assertTrue(notes.get(0).contains("the oldest messages are left out"));
    }

    @Test
    public void theContextIsFull() {
        server.contextSize = 100;
        failed("the context has room for 75 besides the answer", ask(new String(new char[90])));
        answered("hi");
        chat = null;
        Recorder heard = ask("0123456789012345678901234567890123456789");
        assertEquals("length", heard.last().finishReason);
        assertEquals(100 + 1 - 43, heard.last().tokens);
        assertTrue(heard.errors.isEmpty());
    }
}
